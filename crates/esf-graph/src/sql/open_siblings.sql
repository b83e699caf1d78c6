UPDATE siblings SET opened = 1 WHERE prompt = $1
