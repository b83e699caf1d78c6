SELECT consumer, sequences FROM batches WHERE run = $1 AND batch = $2
