SELECT level, depth FROM positions WHERE number = $1
