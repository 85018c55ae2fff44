"""`fedapp check`: what a site should know before it joins."""
