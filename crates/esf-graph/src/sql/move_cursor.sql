UPDATE consumers SET cursor = $1 WHERE number = $2
