# Stand-ins for public base images, for an engine that can pull none: one Debian tree with Python, one
# layer more with the services that Debian packages. They get the public names inside the test's own
# engine only, so that Dockerfile and compose file are tested as they are.

base_tree() { # $work/base.tar: what python:3.11-slim-bookworm is made of, from Debian's packages
  test -s "$work/base.tar" && return
  TMPDIR=$work mmdebstrap -q --mode=root --variant=minbase --include=usr-is-merged,python3-venv \
    --hook-dir="$work/base/root/usr/share/mmdebstrap/hooks/merged-usr" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
    bookworm "$work/new.tar" >"$work/base.log" 2>&1 || { tail -20 "$work/base.log" >&2; return 1; }
  mv "$work/new.tar" "$work/base.tar"
}

stand_ins() { # python, prometheus, haproxy, redis; expects an engine without networks
  docker image inspect stand-in/debian >/dev/null 2>&1 || docker import -c 'ENV PATH=/opt/py/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    -c 'CMD ["bash"]' "$work/base.tar" stand-in/debian >/dev/null
  mkdir -p "$work/context"
  cp /etc/ssl/certs/ca-certificates.crt "$work/context/ca.crt" # this machine's registries
  docker build -q --network host -t stand-in/python -f - "$work/context" >/dev/null <<'END'
FROM stand-in/debian
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
RUN python3 -m venv /opt/py
END
  docker build -q --network host -t stand-in/services -f - "$work/context" >/dev/null <<'END'
FROM stand-in/debian
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends prometheus haproxy redis-server busybox >/dev/null \
 && mkdir -p /prometheus && chown 65534:65534 /prometheus && ln -s busybox /bin/wget
ENTRYPOINT []
END
  docker tag stand-in/python "$(arg PYTHON_IMAGE)"
  docker tag stand-in/services "$(image haproxy)"
  docker tag stand-in/services "$(image redis)"
  docker build -q -t "$(image prom/prometheus)" - >/dev/null <<'END'
FROM stand-in/services
ENTRYPOINT ["/usr/bin/prometheus"]
USER 65534
END
}

arg() { sed -n "s/^ARG $1=//p" deploy/Dockerfile; }
image() { sed -n "s|^ *image: \\($1:[^ ]*\\)|\\1|p" docker-compose.yml; }
