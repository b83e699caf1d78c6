SELECT sequence FROM siblings WHERE number = $1
