# shellcheck shell=sh
# What pip is told on this host.

# pip_value KEY: the last value that pip's files or environment give, a list of words
pip_value() {
    "$PYTHON" -m pip config list 2>/dev/null | sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" | sed 's/\\n/ /g' | tail -n 1
}
