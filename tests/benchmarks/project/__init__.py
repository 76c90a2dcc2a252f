"""The project that is measured: a few tasks that do nothing, on the whole product as anybody would install it."""
