#!/bin/sh
# Makes a virtual environment that holds a lock file's packages and runs this checkout; does nothing if it is up to date.
#
#   venv.sh FOLDER LOCK [PYTHON]
#
#   UV  a uv to install with instead of pip: quicker, for the environments after the first
#
# The checkout comes in by a .pth file and a three-line command, which needs no build backend and takes no time.
# Exit codes: 0; 3 if this host's Python cannot make environments.
set -eu

folder=$1
lock=$2
python=${3:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)

cannot() {
    echo "venv: $*" >&2
    exit 3
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    cannot "$python does not run; install Python 3.10 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    cannot "$python is Python $version; 3.10 or newer is needed: make PYTHON=/path/to/python3.11"

stamp="$folder/.stamp"
wanted="$version $root $(cksum < "$root/$lock") $(cksum < "$0")"
if [ -x "$folder/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

echo "venv: making $folder from $lock (Python $version)" >&2
rm -rf "$folder"
if [ -n "${UV:-}" ]; then
    "$UV" venv --quiet --python "$python" "$folder"
    "$UV" pip install --quiet --python "$folder/bin/python" --no-deps --require-hashes --requirements "$root/$lock"
else
    "$python" -c 'import ensurepip, venv' 2>/dev/null || cannot "this Python has no venv or no ensurepip;\
 on Debian and Ubuntu: apt-get install python$version-venv"
    "$python" -m venv "$folder"
    # A constraint of the caller's pip could only contradict the lock.
    PIP_CONSTRAINT=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 "$folder/bin/python" -m pip install --quiet \
        --no-deps --require-hashes --requirement "$root/$lock"
fi

"$folder/bin/python" - "$root" <<'PYTHON'
import pathlib
import sys
import sysconfig

root = sys.argv[1]
pathlib.Path(sysconfig.get_path("purelib"), "grpo_stack.pth").write_text(root + "\n")
command = pathlib.Path(sysconfig.get_path("scripts"), "grpo-stack")
start = f"#!{sys.executable}"
# Linux ends an interpreter's name at the first blank and cuts the line at 127 bytes. Then a shell finds the Python beside the
# command; to Python its line is a string.
if len(start.split()) > 1 or len(start.encode()) > 127:
    start = """#!/bin/sh\n'''exec' "$(dirname "$(readlink -f "$0")")/python" "$0" "$@"\n' '''"""
command.write_text(f"{start}\nimport sys\nfrom grpo_stack.cli import main\nsys.exit(main())\n")
command.chmod(0o755)
PYTHON
echo "$wanted" > "$stamp"
