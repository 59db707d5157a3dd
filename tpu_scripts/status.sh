#!/usr/bin/env bash
# Say how a TPU, or its place in the queue, stands.
#
#   status.sh NAME --zone ZONE [--queued] [--project PROJECT] [--dry-run]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

parse "$@"
KIND=tpu-vm FORMAT="value(state,health,acceleratorType)"
for word in "${REST[@]}"; do
  [[ $word == --queued ]] || die "unknown: $word. See --help."
  KIND=queued-resources FORMAT="value(state.state)"
done
need_gcloud
tpus "$KIND" describe "$NAME" "--format=$FORMAT"
