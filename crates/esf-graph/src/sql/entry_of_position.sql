SELECT entry FROM positions WHERE number = $1 AND search = $2
