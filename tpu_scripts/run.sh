#!/usr/bin/env bash
# Start a command on all workers, and leave it running there.
#
#   run.sh NAME --zone ZONE --run RUN [--copy FILE ...] [--secret VARIABLE=SECRET ...]
#          [--project PROJECT] [--dry-run] -- pce-jax finetune recipe.toml --out run
#
#   --run      a name for it: it runs in ~/pce-jax-runs/RUN, and its output is log.txt there
#   --copy     a file or folder that it needs, copied into that folder first
#   --secret   a variable for it, such as HF_TOKEN, whose value the workers themselves take from
#              Google's Secret Manager: it is neither shown nor stored
#
# A run whose processes are alive is not started again.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

RUN="" COPY=() SECRETS=() COMMAND=()
OWN=([--run]=RUN)
parse "$@"
set -- "${REST[@]}"
while (($#)); do
  case $1 in
    --copy) COPY+=("$(value "$@")") && shift ;;
    --secret) SECRETS+=("$(value "$@")") && shift ;;
    --)
      shift
      COMMAND=("$@")
      break
      ;;
    *) die "unknown: $1. The command stands behind --. See --help." ;;
  esac
  shift
done
check_run
((${#COMMAND[@]})) || die "there is no command: it stands behind --."

EXPORTS=""
for secret in "${SECRETS[@]}"; do
  [[ $secret =~ ^([A-Za-z_][A-Za-z0-9_]*)=([A-Za-z0-9_-]+)$ ]] ||
    die "--secret '$secret': give VARIABLE=NAME, the name it has in Secret Manager, not its value."
  EXPORTS+="${BASH_REMATCH[1]}=\$(gcloud secrets versions access latest --secret=${BASH_REMATCH[2]})"
  EXPORTS+=" && export ${BASH_REMATCH[1]}
"
done

need_gcloud
on_workers all "mkdir -p $RUNS/$RUN"
if ((${#COPY[@]})); then
  tpus tpu-vm scp --recurse "${COPY[@]}" "$NAME:pce-jax-runs/$RUN/" --worker=all
fi
on_workers all "set -e; cd $RUNS/$RUN
if [ -f pid ] && kill -0 \$(cat pid) 2>/dev/null; then echo 'already running' >&2; exit 1; fi
export PATH=\$HOME/pce-jax-venv/bin:\$PATH JAX_COMPILATION_CACHE_DIR=\$HOME/pce-jax-cache
${EXPORTS}nohup $(printf '%q ' "${COMMAND[@]}")>> log.txt 2>&1 < /dev/null &
echo \$! > pid"
