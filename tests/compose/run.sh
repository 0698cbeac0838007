#!/usr/bin/env bash
# make compose-test: builds, ups, chats, scales, scrapes and tears down what operators run.
# Uses the Docker engine that answers; where none does, brings one up from Debian's packages inside
# namespaces of its own (processes, mounts, network) and removes it. COMPOSE_TEST_CACHE=dir keeps
# packages and layers for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
export COMPOSE_PROJECT_NAME=millrace-test-$$ MILLRACE_TAG=test-$$ PY=${PY:-.venv/bin/python}
export EPOCH=$EPOCHSECONDS

say() { echo "compose-test: $((EPOCHSECONDS - EPOCH)) s: $*"; }

build() { # build COMPOSE-OPTION...: all images, and what they weigh
  docker compose --progress quiet --profile gpu "$@" build
  say "images"
  docker images --filter "reference=millrace/*:$MILLRACE_TAG" --format '  {{.Repository}} {{.Size}}'
}

story() { "$PY" -m tests.compose.story "$@"; }

drop_images() { # by name: the same image may bear another one, which is not ours
  docker images --filter "reference=millrace/*:$MILLRACE_TAG" --format '{{.Repository}}:{{.Tag}}' |
    xargs -r docker rmi >/dev/null
}

if docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
  say "uses the Docker engine of this machine"
  trap 'docker compose --profile "*" down -v -t 5 >/dev/null 2>&1; drop_images' EXIT
  build
  story --with-grafana
  say "done"
  exit
fi

[[ $(id -u) = 0 ]] || { echo "compose-test: no Docker engine answers; to bring one up takes root" >&2; exit 1; }
say "no Docker engine answers: brings one up from Debian's packages"
# A short path: a socket's name has room for 108 bytes.
export work=${COMPOSE_TEST_CACHE:-$(mktemp -d /var/tmp/millrace-compose.XXXXXX)}
mkdir -p "$work"
old_groups=$(ls -d /sys/fs/cgroup/*/docker /sys/fs/cgroup/docker 2>/dev/null || true)
clean() {
  [[ ${COMPOSE_TEST_CACHE:-} ]] || rm -rf "$work"
  for group in $(ls -d /sys/fs/cgroup/*/docker /sys/fs/cgroup/docker 2>/dev/null); do
    grep -qx "$group" <<<"$old_groups" || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}
trap clean EXIT
source tests/compose/engine.sh
source tests/compose/images.sh
export -f say build story drop_images packages base_tree stand_ins arg image \
  fetch_base fetch_docker use_engine start_engine stop_engine
ours() { # in namespaces that end with this script, however it ends
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc "$@"
}

fetch_docker &
fetching=$!
fetch_base
ours bash -euo pipefail -c 'use_engine; base_tree'
wait $fetching
say "engine and base tree"
ours bash -euo pipefail -c '
  use_engine
  start_engine --bridge=none --iptables=false --ip-forward=false
  docker ps -aq | xargs -r docker rm -fv >/dev/null # of a run that was killed, in the cache
  docker network prune -f >/dev/null
  stand_ins
  say "stand-ins for the public base images"
  build -f docker-compose.yml -f tests/compose/override.yml
  stop_engine'
ours --net bash -euo pipefail -c '
  use_engine
  ip link set lo up
  start_engine
  TMPDIR=$work story && told=0 || told=$?
  drop_images
  stop_engine
  exit $told'
say "done"
