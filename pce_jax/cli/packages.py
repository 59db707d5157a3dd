"""Which of a distribution's requirements are installed, by its own metadata."""

import dataclasses
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

PROJECT = "pce-jax"


@dataclasses.dataclass(frozen=True)
class Installed:
    """What the metadata of this project asks for and what is there.

    Attributes:
        versions: Installed version of each requirement, or `None` where it is missing.
        problems: Requirements that are missing or of an unwanted version, in words.
        extras: For each optional extra, what is missing for it.
    """

    versions: dict[str, str | None]
    problems: list[str]
    extras: dict[str, list[str]]


def installed(project: str = PROJECT) -> Installed | None:
    """Compare a project's requirements with what is installed.

    Returns:
        `None` if the project itself is not installed (run from its source tree).
    """
    try:
        about = metadata.metadata(project)
    except metadata.PackageNotFoundError:
        return None
    base = _requirements(project, "")
    return Installed(
        versions={requirement.name: version(requirement.name) for requirement in base},
        problems=[problem for requirement in base for problem in _missing(requirement)],
        extras={
            extra: [
                problem
                for requirement in _requirements(project, extra)
                if requirement not in base
                for problem in _missing(requirement)
            ]
            for extra in about.get_all("Provides-Extra") or []
        },
    )


def version(name: str) -> str | None:
    """Installed version of a distribution, or `None`."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements(name: str, extra: str) -> list[Requirement]:
    """What a distribution asks for on this machine, with one extra or (`""`) without any."""
    found = []
    for line in metadata.requires(name) or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # old metadata of others
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found.append(requirement)
    return found


def _missing(requirement: Requirement) -> list[str]:
    """What of a requirement is not there: itself, its version, or something its extras need."""
    have = version(requirement.name)
    if have is None:
        return [f"{requirement.name}{requirement.specifier}"]
    problems = []
    if not requirement.specifier.contains(have, prereleases=True):
        problems.append(f"{requirement.name}{requirement.specifier} (installed: {have})")
    base = {str(r) for r in _requirements(requirement.name, "")} if requirement.extras else set()
    for extra in sorted(requirement.extras):
        for needed in _requirements(requirement.name, extra):
            if str(needed) not in base:
                problems += _missing(needed)
    return problems
