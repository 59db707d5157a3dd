#!/usr/bin/env bash
# Follow the output of a run.
#
#   logs.sh NAME --zone ZONE --run RUN [--worker 0] [--project PROJECT] [--dry-run]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

RUN="" WORKER=0
parse "$@"
set -- "${REST[@]}"
while (($#)); do
  case $1 in
    --run) RUN=$(value "$@") && shift ;;
    --worker) WORKER=$(value "$@") && shift ;;
    *) die "unknown: $1. See --help." ;;
  esac
  shift
done
[[ -n $RUN ]] || die "give --run, the name of the run."
check_word --run "$RUN"
check_word --worker "$WORKER"
need_gcloud
on_workers "$WORKER" "tail -n 100 -F $RUNS/$RUN/log.txt"
