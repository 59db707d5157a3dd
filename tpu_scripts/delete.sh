#!/usr/bin/env bash
# Delete a TPU that create.sh has created, and everything on it.
#
#   delete.sh NAME --zone ZONE [--queued] [--yes] [--project PROJECT] [--dry-run]
#
#   --queued   it was created with --queued: its place in the queue goes too
#   --yes      do not ask
#
# What does not carry the label created-by=pce-jax is left alone.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

KIND=tpu-vm FIELD="value(labels.created-by)" YES="" MORE=()
parse "$@"
for word in "${REST[@]}"; do
  case $word in
    --queued)
      KIND=queued-resources FIELD="value(tpu.nodeSpec[0].node.labels.created-by)" MORE=(--force)
      ;;
    --yes) YES=1 ;;
    *) die "unknown: $word. See --help." ;;
  esac
done

need_gcloud
if [[ -n $DRY_RUN ]]; then
  tpus "$KIND" describe "$NAME" "--format=$FIELD"
else
  owner=$(tpus "$KIND" describe "$NAME" "--format=$FIELD")
  [[ created-by=$owner == "$LABEL" ]] ||
    die "$NAME was not created by create.sh (it has no label $LABEL): it is left alone."
  if [[ -z $YES ]]; then
    read -r -p "Delete $NAME in $ZONE, with everything on it? [y/N] " answer
    [[ $answer == [yY]* ]] || die "nothing was deleted."
  fi
fi
tpus "$KIND" delete "$NAME" --quiet "${MORE[@]}"
