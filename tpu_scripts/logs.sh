#!/usr/bin/env bash
# Follow the output of a run.
#
#   logs.sh NAME --zone ZONE --run RUN [--worker 0] [--project PROJECT] [--dry-run]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

RUN="" WORKER=0
OWN=([--run]=RUN [--worker]=WORKER)
parse "$@"
no_more "${REST[@]}"
check_run
check_word --worker "$WORKER"
need_gcloud
on_workers "$WORKER" "tail -n 100 -F $RUNS/$RUN/log.txt"
