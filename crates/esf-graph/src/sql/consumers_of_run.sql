SELECT number, offered, name, unit, usable_only, cursor, trainer_step FROM consumers WHERE run = $1 ORDER BY number
