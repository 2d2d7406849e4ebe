#!/bin/sh
# Removes from the virtual environment $1 what no process of ours loads: tests, headers, static libraries, pip.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
"$1/bin/pip" check
find "$packages" -depth -type d \( -name tests -o -name test \) \
  ! -path '*/torch/*' ! -path '*/numpy/*' -exec rm -rf {} +
find "$packages" -name '*.a' -delete
rm -rf "$packages/torch/include" "$packages/torch/test" "$packages/torch/share"
find "$packages/torch/bin" -type f ! -name torch_shm_manager -delete # the import looks for this one
rm -rf "$packages/pyarrow/include" "$packages/pandas/tests" "$packages/numpy/tests"
rm -rf "$packages"/pip "$packages"/pip-*.dist-info "$1"/bin/pip*
