UPDATE searches SET root = $1 WHERE number = $2
