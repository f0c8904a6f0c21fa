"""Why a step differs: runs are recorded operator by operator, and the first operator at which two runs differ is named."""
