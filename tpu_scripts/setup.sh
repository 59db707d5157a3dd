#!/usr/bin/env bash
# Install pce-jax, as it is in this checkout, on all workers.
#
#   setup.sh NAME --zone ZONE [--python 3.12] [--project PROJECT] [--dry-run]
#
# Builds a wheel here (with `python3 -m pip`), copies it, and installs it with the extra `tpu` into
# ~/pce-jax-venv, by uv (https://docs.astral.sh/uv), which also brings the Python.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

PYTHON=3.12
OWN=([--python]=PYTHON)
parse "$@"
no_more "${REST[@]}"
check_word --python "$PYTHON"

ROOT=$(cd "$(dirname "$0")/.." && pwd)
need_gcloud
if [[ -n $DRY_RUN ]]; then
  WHEELS=WHEELS
else
  WHEELS=$(mktemp -d)
  trap 'rm -rf "$WHEELS"' EXIT
fi
run python3 -m pip wheel --quiet --no-deps --wheel-dir "$WHEELS" "$ROOT"
# The workers expand ~ and $HOME.
# shellcheck disable=SC2016
on_workers all 'rm -rf ~/pce-jax-wheel && mkdir -p ~/pce-jax-wheel'
if [[ -n $DRY_RUN ]]; then
  tpus tpu-vm scp "$WHEELS/pce_jax.whl" "$NAME:pce-jax-wheel/" --worker=all
else
  tpus tpu-vm scp "$WHEELS"/pce_jax-*.whl "$NAME:pce-jax-wheel/" --worker=all
fi
# shellcheck disable=SC2016
on_workers all 'set -e; export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
uv venv --quiet --clear --python '"$PYTHON"' ~/pce-jax-venv
uv pip install --quiet --python ~/pce-jax-venv "$(echo ~/pce-jax-wheel/pce_jax-*.whl)[tpu,eval,data]"
~/pce-jax-venv/bin/pce-jax doctor'
