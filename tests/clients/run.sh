#!/bin/sh
# Runs stock clients, unmodified, against a live stack: tests/clients/run.sh [MODEL_FOLDER]
# They are installed under build/clients, never into the project's own environment.
# With OPENAI_BASE_URL set, that server is asked instead of a stack of our own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build="$root/build/clients"
PY=${PY:-python3}
model=${1:-}

mkdir -p "$build/node"
test -x "$build/venv/bin/python" || "$PY" -m venv "$build/venv"
"$build/venv/bin/python" -m pip install -q --disable-pip-version-check -r "$here/requirements.txt"
cp "$here/package.json" "$here"/*.mjs "$build/node/"
if command -v npm >/dev/null; then (cd "$build/node" && npm install --silent --no-audit --no-fund); fi

if [ -z "${OPENAI_BASE_URL:-}" ]; then
  port=$("$PY" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
  trap '(cd "$root" && "$PY" -m millrace.cli down --state "$build/stack")' EXIT
  trap 'exit 130' HUP INT TERM  # or dash leaves out the trap of EXIT
  (cd "$root" && "$PY" -m millrace.cli up --detach --state "$build/stack" --port "$port" ${model:+--model "$model"})
  OPENAI_BASE_URL="http://127.0.0.1:$port/v1"
fi
MILLRACE_MODEL=$("$PY" -c 'import json, sys, urllib.request as u
print(json.load(u.urlopen(sys.argv[1] + "/models"))["data"][0]["id"])' "$OPENAI_BASE_URL")
export OPENAI_BASE_URL MILLRACE_MODEL OPENAI_API_KEY="${OPENAI_API_KEY:-none}"

failed=0
for script in openai_python anthropic_python litellm_client langchain_client instructor_client; do
  if (cd "$here" && "$build/venv/bin/python" "$script.py" >"$build/$script.log" 2>&1); then
    echo "ok      $script"
  else
    failed=1; echo "FAILED  $script"; tail -20 "$build/$script.log"
  fi
done
for script in openai_node anthropic_node ai_sdk; do
  if ! command -v node >/dev/null; then
    echo "!! NOT RUN: $script, no node here"
  elif (cd "$build/node" && node "$script.mjs" >"$build/$script.log" 2>&1); then
    echo "ok      $script"
  else
    failed=1; echo "FAILED  $script"; tail -20 "$build/$script.log"
  fi
done
exit $failed
