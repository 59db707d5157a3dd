# shellcheck shell=bash
# What all scripts here share: flags, `--dry-run`, and what is said when something is missing.
# Sourced, not run. It sets NAME ZONE PROJECT DRY_RUN, those that OWN names, and REST (what is left).

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || {
  echo "bash 4.4 or newer is needed; this is $BASH_VERSION." >&2
  exit 1
}

# Used by those that source this; what is remote is expanded there.
# shellcheck disable=SC2034
readonly LABEL="created-by=pce-jax"
# shellcheck disable=SC2034,SC2088
readonly RUNS="~/pce-jax-runs"

NAME="" ZONE="" PROJECT="" DRY_RUN="" REST=()
# A script's own flags with a value, and the variables that take it: OWN[--run]=RUN
declare -A OWN=()

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# The comment at the top of a script is its help.
help() {
  sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//;p;}' "$0"
  exit 0
}

# Takes the flags that all scripts know, and those in OWN; what it does not know goes to REST.
parse() {
  local given
  while (($#)); do
    if [[ -n $1 && -n ${OWN[$1]-} ]]; then
      given=$(value "$@")
      printf -v "${OWN[$1]}" '%s' "$given"
      shift 2
      continue
    fi
    case $1 in
      -h | --help) help ;;
      --zone) ZONE=$(value "$@") && shift ;;
      --project) PROJECT=$(value "$@") && shift ;;
      --dry-run) DRY_RUN=1 ;;
      --)
        REST+=("$@")
        break
        ;;
      -*) REST+=("$1") ;;
      *) if [[ -z $NAME ]]; then NAME=$1; else REST+=("$1"); fi ;;
    esac
    shift
  done
  [[ -n $NAME ]] || die "give the name of the TPU first. See --help."
  [[ $NAME =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    die "'$NAME' is no name for a TPU: small letters, digits and hyphens, a letter first."
  [[ -n $ZONE ]] || die "give --zone, such as us-central1-a."
}

# Refuses what is left.
no_more() {
  ((!$#)) || die "unknown: $1. See --help."
}

# The value behind a flag.
value() {
  [[ $# -ge 2 && $2 != --* ]] || die "$1 needs a value."
  printf '%s' "$2"
}

# Runs a command, or prints it for a dry run.
run() {
  if [[ -n $DRY_RUN ]]; then
    printf '%q ' "$@" | sed 's/ $//'
    printf '\n'
  else
    "$@"
  fi
}

# gcloud for TPUs, in this zone and project.
tpus() {
  local where=("--zone=$ZONE")
  [[ -z $PROJECT ]] || where+=("--project=$PROJECT")
  run gcloud compute tpus "$@" "${where[@]}"
}

# Refuses to go on without gcloud, or without being logged in. A dry run needs neither.
need_gcloud() {
  [[ -z $DRY_RUN ]] || return 0
  command -v gcloud >/dev/null ||
    die "gcloud is not installed: https://cloud.google.com/sdk/docs/install"
  [[ -n $(gcloud auth list --filter=status:ACTIVE --format='value(account)' 2>/dev/null) ]] ||
    die "gcloud is not logged in: run 'gcloud auth login'."
}

# A command on the workers of a TPU VM: on_workers WORKER COMMAND
on_workers() {
  tpus tpu-vm ssh "$NAME" "--worker=$1" "--command=$2"
}

# The name of a run, which its folder bears.
check_run() {
  [[ -n $RUN ]] || die "give --run, the name of the run."
  check_word --run "$RUN"
}

# A word that is safe in a path and in a remote shell.
check_word() {
  [[ $2 =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || die "$1 '$2' must be one word of letters, digits, . _ -"
}
