# shellcheck shell=bash
# Sourced by `run` and `run-rust`: a cluster, the smoke of every client, then a real text file that each
# writes whole, and reads as the next one does.
#
# The caller sets `here`, `brokers` (empty: three nodes are started), `keep`, `names` (the clients, in
# their order) and a function `client NAME` that sets `command`. A client is called as
#
#   COMMAND BROKERS smoke                         small records of all kinds in every codec
#   COMMAND BROKERS produce TOPIC CODEC < FILE    lines of KEY:LINE, to where murmur2 sends their keys
#   COMMAND BROKERS read TOPIC PREFIX             each partition, by assign, into a file PREFIX-NUMBER

CLIENT_SECONDS_MAX=180

drive() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/corduroy-clients.XXXXXX")
    trap finish EXIT
    trap 'exit 130' INT TERM
    export PYTHONDONTWRITEBYTECODE=1
    if [ -z "$brokers" ]; then
        start
    fi
    passed=0
    failed=()
    local name place codecs=(zstd gzip lz4 snappy none)
    for name in "${names[@]}"; do
        step "$name" call "$name" smoke
    done
    python3 "$here/words.py" input > "$work/words"
    for place in "${!names[@]}"; do
        name=${names[$place]}
        step "$name: words" words "$name" "${names[$(((place + 1) % ${#names[@]}))]}" "${codecs[$((place % 5))]}"
    done
    if [ ${#failed[@]} -gt 0 ] && [ -d "$work/cluster" ]; then
        tail -n 20 "$work"/cluster/node-*.log >&2
    fi
    echo "$passed passed, ${#failed[@]} failed"
    [ ${#failed[@]} -eq 0 ]
}

start() {
    local began=$SECONDS
    brokers=$(python3 "$here/cluster.py" start "$work/cluster")
    CORDUROY=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["binary"])' "$work/cluster/cluster.json")
    export CORDUROY
    echo "three nodes of $CORDUROY serve after $((SECONDS - began)) s: $brokers"
}

finish() {
    local status=$?
    trap - EXIT INT TERM
    if [ -e "$work/cluster/cluster.json" ]; then
        python3 "$here/cluster.py" stop "$work/cluster" || status=1
    fi
    if [ -n "$keep" ] || [ "$status" -ne 0 ]; then
        echo "logs and what was read: $work" >&2
    else
        rm -rf "$work"
    fi
    exit "$status"
}

# step LABEL COMMAND...: runs it and tells how it went, with what it printed.
step() {
    local label=$1 log=$work/${1/: /-}.log began=$SECONDS
    shift
    if "$@" > "$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $label ($((SECONDS - began)) s)"
    else
        failed+=("$label")
        echo "FAILED  $label ($((SECONDS - began)) s)"
    fi
    sed 's/^/        /' "$log"
}

call() {
    local name=$1 command
    shift
    client "$name"
    timeout "$CLIENT_SECONDS_MAX" "${command[@]}" "$brokers" "$@"
}

# words NAME OTHER CODEC: NAME writes the file, then NAME reads every partition, then OTHER, if it is another.
words() {
    local name=$1 codec=$3 topic=$1-words reader readers=("$1")
    [ "$2" = "$1" ] || readers+=("$2")
    call "$name" produce "$topic" "$codec" < "$work/words" || return
    for reader in "${readers[@]}"; do
        call "$reader" read "$topic" "$work/$topic-by-$reader" || return
        python3 "$here/words.py" judge "$work/$topic-by-$reader" || return
    done
    echo "$(wc -l < "$work/words") lines ($codec) in $(find "$work" -name "$topic-by-$name-*" | wc -l) partitions, read by ${readers[*]}"
}
