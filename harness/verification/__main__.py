"""`python -m harness.verification SIDE ...`: one of the `sides` in a process of its own."""

from harness.verification.sides import main

if __name__ == "__main__":
    main()
