#!/usr/bin/env bash
# Create a TPU slice.
#
#   create.sh NAME --zone ZONE --type TYPE [--queued] [--spot] [--version VERSION]
#             [--network NETWORK] [--project PROJECT] [--dry-run]
#
#   --type      such as v5litepod-16, v5p-32, v6e-16
#   --queued    wait in Google's queue until there is one (status.sh tells), instead of at once
#   --spot      cheaper, and may be taken away at any time; finetune goes on where it stopped
#   --version   of the machine's image; by default the one for the type
#
# What is created carries the label created-by=pce-jax; delete.sh deletes nothing else.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "$0")/common.sh"

TYPE="" VERSION="" NETWORK="" QUEUED="" MORE=()
OWN=([--type]=TYPE [--version]=VERSION [--network]=NETWORK)
parse "$@"
for word in "${REST[@]}"; do
  case $word in
    --queued) QUEUED=1 ;;
    --spot) MORE+=(--spot) ;;
    *) no_more "$word" ;;
  esac
done
[[ -n $TYPE ]] || die "give --type, such as v5litepod-16."
if [[ -z $VERSION ]]; then
  case $TYPE in
    v5litepod-*) VERSION=v2-alpha-tpuv5-lite ;;
    v5p-*) VERSION=v2-alpha-tpuv5 ;;
    v6e-*) VERSION=v2-alpha-tpuv6e ;;
    v4-*) VERSION=tpu-ubuntu2204-base ;;
    *) die "which image a $TYPE wants is not known here: give --version." ;;
  esac
fi
[[ -z $NETWORK ]] || MORE+=("--network=$NETWORK")

need_gcloud
if [[ -n $QUEUED ]]; then
  tpus queued-resources create "$NAME" "--node-id=$NAME" "--accelerator-type=$TYPE" \
    "--runtime-version=$VERSION" "--labels=$LABEL" "${MORE[@]}"
else
  tpus tpu-vm create "$NAME" "--accelerator-type=$TYPE" "--version=$VERSION" \
    "--labels=$LABEL" "${MORE[@]}"
fi
