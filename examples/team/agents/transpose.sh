# Gives unzip its mathematical name, wherever the tree has it.
sed -i 's/\bunzip\b/transpose/g' toolz/sandbox/core.py toolz/sandbox/__init__.py
