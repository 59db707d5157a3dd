#!/usr/bin/env bash
# Copy the folder of a run from worker 0, which writes the reports, to here.
#
#   fetch.sh NAME --zone ZONE --run RUN --to FOLDER [--project PROJECT] [--dry-run]
#
# FOLDER must not exist yet: nothing is overwritten.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

RUN="" TO=""
OWN=([--run]=RUN [--to]=TO)
parse "$@"
no_more "${REST[@]}"
check_run
[[ -n $TO ]] || die "give --to, a folder for it."
[[ ! -e $TO ]] || die "$TO is there already: give a new folder."
need_gcloud
run mkdir -p "$(dirname "$TO")"
tpus tpu-vm scp --recurse "$NAME:pce-jax-runs/$RUN" "$TO" --worker=0
