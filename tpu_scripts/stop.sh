#!/usr/bin/env bash
# Ask a run to stop: pce-jax finetune saves where it stands, and the same command goes on from there.
#
#   stop.sh NAME --zone ZONE --run RUN [--project PROJECT] [--dry-run]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

RUN=""
parse "$@"
set -- "${REST[@]}"
while (($#)); do
  case $1 in
    --run) RUN=$(value "$@") && shift ;;
    *) die "unknown: $1. See --help." ;;
  esac
  shift
done
[[ -n $RUN ]] || die "give --run, the name of the run."
check_word --run "$RUN"
need_gcloud
on_workers all "cd $RUNS/$RUN && kill -TERM \$(cat pid)"
