UPDATE consumers SET trainer_step = $1 WHERE number = $2
