#!/bin/sh
# What the administrator does, with Flower's own commands: `admin.sh register`, `admin.sh demo
# [NAME [SETTINGS]]`: a run's name, and what it sets anew, such as "rounds.num_rounds=6".
# APP: folder of the app; SUPERLINK: its host:port; KEYS: the server's keys; RUNS: the runs' folder.
set -eu

mkdir -p "$FLWR_HOME"
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "hospitals"

[superlink.hospitals]
address = "$SUPERLINK"
root-certificates = "$KEYS/ca.crt"
END

case "$1" in
register) # the public key of every site; those that are registered stay so
    for key in "$KEYS"/supernodes/*.pub; do
        name=$(basename "$key" .pub)
        said=$(flwr supernode register "$key" hospitals --name "$name" 2>&1) && continue
        case "$said" in
        *"already in use"*) ;;
        *) echo "$name: $said" >&2 && exit 1 ;;
        esac
    done
    fedapp sites hospitals
    ;;
demo) # train on the three sites' own digits; the end of the log is the result
    name=${2:-demo-$(date +%Y%m%d-%H%M%S)}
    config="preset='digits_sites' set='runtime.run_name=$name ${3:-}'"
    flwr run "$APP" hospitals --stream --run-config "$config"
    # Flower's command also ends well when the run does not.
    [ -f "$RUNS/$name/summary.json" ] || {
        echo "the run $name did not reach its end; see the log above" >&2
        exit 1
    }
    ;;
*)
    echo "admin.sh: $1: unknown; say register or demo" >&2
    exit 2
    ;;
esac
