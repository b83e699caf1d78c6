# Names the release in the warning of a module that drop-compat.sh removes.
sed -i 's/will be removed in a future release/will be removed in release 2/' toolz/compatibility.py
