-- What do calibrations share with test documents?
--
--   duckdb results/lamina.duckdb -f sql/queries/what_calibrations_share_with_tests.sql
--
-- One row per calibration and task, the largest overlap first.
-- sharing   documents of the calibration, of `documents`, that share a passage of 13 words with one
--           of `tested` test documents
-- near      near duplicates among them
-- Empty where no calibration was compared with test documents.
SELECT DISTINCT calibration, task, documents, tested, near, sharing FROM shared_documents
ORDER BY sharing DESC, calibration, task;
