package main

import "errors"

func serve([]string) error { return errors.New("not built yet") }
