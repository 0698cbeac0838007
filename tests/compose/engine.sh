# A Docker engine of the test's own, for machines without one: Debian's packages, unpacked into $work
# and run from there. Nothing is installed; the caller gives namespaces that die with the test.
# Knows nothing of Millrace. Expects: $work (a folder) and root.

packages() { # packages FOLDER SOURCES... -- NAME...: download and unpack Debian packages
  local into=$1 sources=$2 parts=$3
  shift 3
  mkdir -p "$into"/{lists/partial,cache/archives/partial,debs,root}
  local options=(-qq -o "Dir::Etc::sourcelist=$sources" -o "Dir::Etc::sourceparts=$parts"
    -o "Dir::State::lists=$into/lists" -o "Dir::Cache=$into/cache" -o APT::Sandbox::User=root
    -o Acquire::Languages=none)
  apt-get "${options[@]}" update
  (cd "$into/debs" && apt-get "${options[@]}" download "$@")
  for deb in "$into"/debs/*.deb; do dpkg-deb -x "$deb" "$into/root"; done
}

fetch_engine() { # the engine from this machine's release; compose and buildx from trixie, which has v2
  command -v apt-get dpkg-deb >/dev/null || {
    echo "compose-test: no Docker engine answers, and this machine has no apt to fetch one with" >&2
    return 1
  }
  packages "$work/engine" /etc/apt/sources.list /etc/apt/sources.list.d \
    docker.io containerd runc tini iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 \
    libnfnetlink0 libnetfilter-conntrack3 libdevmapper1.02.1 mmdebstrap
  printf 'deb [signed-by=%s] http://deb.debian.org/debian trixie main\n' \
    /usr/share/keyrings/debian-archive-keyring.gpg >"$work/trixie.list"
  packages "$work/plugins" "$work/trixie.list" - docker-compose/trixie docker-buildx/trixie
  mkdir -p "$work/config/cli-plugins"
  cp "$work"/plugins/root/usr/libexec/docker/cli-plugins/docker-* "$work/config/cli-plugins/"
  for name in iptables ip6tables iptables-save iptables-restore; do # an alternative, elsewhere
    ln -sf xtables-legacy-multi "$work/engine/root/usr/sbin/$name"
  done
}

use_engine() { # point the docker command, and what it starts, at the unpacked engine
  local root=$work/engine/root
  export PATH=$root/usr/sbin:$root/usr/bin:$root/sbin:$PATH
  export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
  export XTABLES_LIBDIR=$root/usr/lib/x86_64-linux-gnu/xtables
  export DOCKER_CONFIG=$work/config DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=1
}

start_engine() { # start_engine OPTION...: run dockerd in the background, wait until it answers
  # The limits are for machines that may not raise theirs.
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" \
    -H "$DOCKER_HOST" --oom-score-adjust 0 --default-ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" \
    --init-path "$(command -v docker-init || command -v tini)" "$@" >>"$work/dockerd.log" 2>&1 &
  for _ in $(seq 100); do
    docker version >/dev/null 2>&1 && return
    sleep 0.2
  done
  tail -20 "$work/dockerd.log" >&2
  return 1
}

stop_engine() { # let it write down what it holds, then wait for it
  kill "$(cat "$work/dockerd.pid")" && wait || true
}
