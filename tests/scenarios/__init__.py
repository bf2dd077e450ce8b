"""One scenario a branch of asyncapi.yaml, by its name; a package, as other folders have files of these names too."""
