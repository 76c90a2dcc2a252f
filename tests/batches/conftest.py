from tests.line import long_up  # noqa: F401  (a fixture for all tests here)
