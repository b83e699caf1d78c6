UPDATE consumers SET offered = $1 WHERE number = $2
