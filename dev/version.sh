#!/usr/bin/env bash
# version.sh: prints the version of the workspace.
sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml"
