#!/bin/sh
# Runs a command of the image build with the build's network settings: the index addresses from the build arguments,
# and the certificate authorities from the build secret `ca_bundle`, which may be empty or absent.
set -eu

ca_bundle=/run/secrets/ca_bundle
if [ -s "$ca_bundle" ]; then
    export SSL_CERT_FILE="$ca_bundle" PIP_CERT="$ca_bundle"
    # apt reads the file that APT_CONFIG names before its own; it matters for https mirrors only.
    export APT_CONFIG=/tmp/ca_bundle.apt.conf
    echo "Acquire::https::CAInfo \"$ca_bundle\";" > "$APT_CONFIG"
    trap 'rm -f "$APT_CONFIG"' EXIT
fi
if [ -n "${INDEX_URL:-}" ]; then
    export UV_DEFAULT_INDEX="$INDEX_URL" PIP_INDEX_URL="$INDEX_URL"
fi
if [ -n "${EXTRA_INDEX_URL:-}" ]; then
    export UV_INDEX="$EXTRA_INDEX_URL" PIP_EXTRA_INDEX_URL="$EXTRA_INDEX_URL"
fi
"$@"
