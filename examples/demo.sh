#!/usr/bin/env bash
# Trains on a cluster that lives only for this run. The last line says how the job ended; so does the exit code.
set -euo pipefail
cd "$(dirname "$0")/.."

data=$(mktemp -d)
cluster=
end() {
  trap '' INT TERM
  if [[ -n $cluster ]]; then
    kill -TERM "$cluster" 2>/dev/null || true
    wait "$cluster" 2>/dev/null || true
  fi
  rm -rf "$data"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export XDG_CONFIG_HOME=$data/config
unset ROLECALL_URL ROLECALL_TOKEN
mkfifo "$data/ready"
echo "starting one parameter server and two trainers on this machine" >&2
rolecall local --trainers 2 --parameter-servers 1 --port 0 --data "$data/cluster" >"$data/ready" 2>"$data/local.log" &
cluster=$!
if ! read -r _ url <"$data/ready"; then
  cat "$data/local.log" >&2
  exit 1
fi
echo "the cluster is ready at $url" >&2
rolecall submit examples/embedding-ddp.json --follow
