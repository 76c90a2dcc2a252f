"""One benchmark in each module: `run(bench)` returns its report, its docstring says what is fair about it."""
