"""Launch scripts of users: run with training commands redirected to Burnish, or only listed without side effects."""
