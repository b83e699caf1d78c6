SELECT number FROM positions WHERE search = $1 AND place = $2
