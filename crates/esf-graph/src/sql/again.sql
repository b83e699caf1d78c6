UPDATE siblings SET revision = $1, status = 'waiting', trial = NULL, sequence = NULL WHERE number = $2
