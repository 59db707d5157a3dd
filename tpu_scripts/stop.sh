#!/usr/bin/env bash
# Ask a run to stop: pce-jax finetune saves where it stands, and the same command goes on from there.
#
#   stop.sh NAME --zone ZONE --run RUN [--project PROJECT] [--dry-run]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

RUN=""
OWN=([--run]=RUN)
parse "$@"
no_more "${REST[@]}"
check_run
need_gcloud
on_workers all "cd $RUNS/$RUN && kill -TERM \$(cat pid)"
