"""Programs that write reference pages and measure the code; not part of the packages."""
