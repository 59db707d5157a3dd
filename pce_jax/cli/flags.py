"""Types of flags that tyro does not know by itself: comma-separated lists and names of methods."""

import difflib
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

METHOD_NAMES = ("full", "naive", "sink", "sel", "sink+sel")
"""The keys of `pce_jax.METHODS`, without importing jax for them."""


def parse_degrees(text: str) -> tuple[int, ...]:
    """Read `1,2,4`: ascending, each once.

    Raises:
        ValueError: Not whole numbers, or one below 1. Its text is shown under the flag's name.
    """
    try:
        degrees = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(
            f"{text!r} is not a list of whole numbers. Separate them by commas, as in 1,2,4,8."
        ) from None
    if degrees[0] < 1:
        raise ValueError(f"a degree must be at least 1 (1 is full attention), got {degrees[0]}.")
    return tuple(degrees)


def parse_method(text: str) -> str:
    """Check the name of a method.

    Raises:
        ValueError: There is no such method; the nearest one is named.
    """
    name = text.strip().lower()
    if name in METHOD_NAMES:
        return name
    near = difflib.get_close_matches(name, METHOD_NAMES, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"there is no method {text!r}.{hint} Known: {', '.join(METHOD_NAMES)}.")


def parse_methods(text: str) -> tuple[str, ...]:
    """Read `naive,sink+sel`: each once, in the order given.

    Raises:
        ValueError: There is no such method.
    """
    return tuple(dict.fromkeys(parse_method(part) for part in text.split(",")))


Degrees = Annotated[
    tuple[int, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="P,P,...",
        instance_from_str=lambda args: parse_degrees(args[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value))],
    ),
]
MethodName = Annotated[
    str,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(METHOD_NAMES) + "}",
        instance_from_str=lambda args: parse_method(args[0]),
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda value: [value],
    ),
]
MethodNames = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME,NAME,...",
        instance_from_str=lambda args: parse_methods(args[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(value)],
    ),
]


PART_NAMES = ("encode", "query", "decode", "memory", "compile", "train", "huggingface")
"""The parts of `pce-jax bench`, without importing jax for them."""


def parse_parts(text: str) -> tuple[str, ...]:
    """Read `encode,query`: each once.

    Raises:
        ValueError: There is no such part; the nearest one is named.
    """
    parts = parse_names(text.lower())
    for part in parts:
        if part not in PART_NAMES:
            near = difflib.get_close_matches(part, PART_NAMES, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no part {part!r}.{hint} Known: {', '.join(PART_NAMES)}.")
    if not parts:
        raise ValueError(f"no part is named. Known: {', '.join(PART_NAMES)}.")
    return parts


def parse_names(text: str) -> tuple[str, ...]:
    """Read `a,b`: each once, in the order given. Whether they exist shows later."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


Parts = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME,NAME,...",
        instance_from_str=lambda args: parse_parts(args[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(value)],
    ),
]
MaybeDegrees = Annotated[
    tuple[int, ...] | None,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="P,P,...",
        instance_from_str=lambda args: parse_degrees(args[0]),
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value or ()))],
    ),
    tyro.conf.arg(help_behavior_hint=""),
]
MaybeNames = Annotated[
    tuple[str, ...] | None,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME,NAME,...",
        instance_from_str=lambda args: parse_names(args[0]),
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(value or ())],
    ),
    tyro.conf.arg(help_behavior_hint=""),
]

# What is None by default: without these, tyro shows `{None}|INT (default: None)`.
Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE [FILE ...]")]
Texts = Annotated[
    tuple[str, ...],
    tyro.conf.arg(metavar="TEXT [TEXT ...]", help_behavior_hint="(default: none)"),
]
MaybeFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
MaybeFolder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]
MaybeText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")]
MaybeCount = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
MaybeDtype = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    tyro.conf.arg(
        metavar="{float32,bfloat16,float16}",
        help_behavior_hint="(default: float32 on CPU, else bfloat16)",
    ),
]
MaybeShapes = Annotated[
    Literal["smollm2-135m", "llama-3.1-8b", "llama-3.1-70b"] | None,
    tyro.conf.arg(metavar="NAME", help_behavior_hint=""),
]
MaybeStore = Annotated[
    Literal["bfloat16", "int8"] | None,
    tyro.conf.arg(metavar="{bfloat16,int8}", help_behavior_hint="(default: as computed)"),
]
MaybeWeights = Annotated[
    Literal["int8"] | None,
    tyro.conf.arg(metavar="{int8}", help_behavior_hint="(default: as --dtype)"),
]
