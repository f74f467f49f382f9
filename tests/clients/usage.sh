# shellcheck shell=bash
# Sourced by the scripts that people call, before anything else: whoever asks what a script does gets
# nothing installed, built or started.

# show_usage SCRIPT: the comment at its head.
show_usage() {
    awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$1"
}

# help_first SCRIPT ARGUMENT...
help_first() {
    local script=$1 argument
    shift
    for argument in "$@"; do
        case $argument in
            -h | --help) show_usage "$script"; exit 0 ;;
        esac
    done
}
