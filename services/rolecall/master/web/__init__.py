"""The web page: overview, submission, job, comparison.

`pages` has the routes, `session` the log-in, `api` the access to the HTTP API, `format` the texts of numbers and times.
The pages read everything through the HTTP API, with the rights of the user's session, and change nothing: buttons and
forms call the API from the browser. Scripts and styles come from `static` alone.
"""
