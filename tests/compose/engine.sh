# A Docker engine of the test's own, for machines without one: Debian's packages, unpacked into $work
# and run from there. Nothing is installed; the caller gives namespaces that die with the test.
# Knows nothing of Millrace. Expects: $work (a folder) and root.

packages() { # packages FOLDER LIST LIST-FOLDER NAME...: download and unpack Debian packages
  local into=$1 sources=$2 parts=$3
  shift 3
  command -v apt-get dpkg-deb >/dev/null || {
    echo "compose-test: no Docker engine answers, and no apt to fetch one with" >&2
    return 1
  }
  mkdir -p "$into"/{lists/partial,cache/archives/partial,debs,unpacked}
  local options=(-qq -o "Dir::Etc::sourcelist=$sources" -o "Dir::Etc::sourceparts=$parts"
    -o "Dir::State::lists=$into/lists" -o "Dir::Cache=$into/cache" -o APT::Sandbox::User=root
    -o Acquire::Languages=none)
  apt-get "${options[@]}" update
  (cd "$into/debs" && apt-get "${options[@]}" download "$@")
  for deb in "$into"/debs/*.deb; do dpkg-deb -x "$deb" "$into/unpacked"; done
  rm -rf "$into"/{debs,cache,lists}
  mv "$into/unpacked" "$into/root"
}

fetch_base() { # what touches the kernel and makes the base tree comes from this machine's release
  test -d "$work/base/root" && return
  packages "$work/base" /etc/apt/sources.list /etc/apt/sources.list.d \
    runc tini mmdebstrap iptables libxtables12 libip4tc2 libip6tc2 libnftnl11 libmnl0 \
    libnfnetlink0 libnetfilter-conntrack3
  for name in iptables ip6tables iptables-save ip6tables-save iptables-restore ip6tables-restore; do
    ln -sf xtables-legacy-multi "$work/base/root/usr/sbin/$name" # an alternative, elsewhere
  done
}

fetch_docker() { # Docker itself from trixie: bookworm's has no compose v2, no start_interval
  test -d "$work/docker/root" && return
  printf 'deb [signed-by=%s] http://deb.debian.org/debian trixie main\n' \
    /usr/share/keyrings/debian-archive-keyring.gpg >"$work/trixie.list"
  packages "$work/docker" "$work/trixie.list" - \
    docker.io docker-cli containerd docker-compose docker-buildx
  mkdir -p "$work/config/cli-plugins"
  cp "$work"/docker/root/usr/libexec/docker/cli-plugins/docker-* "$work/config/cli-plugins/"
}

use_engine() { # point the docker command, and what it starts, at the unpacked engine
  local docker=$work/docker/root base=$work/base/root
  export PATH=$docker/usr/sbin:$docker/usr/bin:$base/usr/sbin:$base/sbin:$base/usr/bin:$PATH
  export LD_LIBRARY_PATH=$base/usr/lib/$(uname -m)-linux-gnu:$base/lib/$(uname -m)-linux-gnu
  export XTABLES_LIBDIR=$base/usr/lib/$(uname -m)-linux-gnu/xtables
  export DOCKER_CONFIG=$work/config DOCKER_HOST=unix://$work/docker.sock
}

start_engine() { # start_engine OPTION...: run dockerd in the background, wait until it answers
  rm -rf "$work"/{dockerd.pid,docker.sock,exec} # of a run that was killed
  # The limits are for machines that may not raise theirs.
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/dockerd.pid" \
    -H "$DOCKER_HOST" --default-ulimit "nofile=$(ulimit -Hn):$(ulimit -Hn)" \
    --init-path "$work/base/root/usr/bin/tini-static" "$@" >>"$work/dockerd.log" 2>&1 &
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
