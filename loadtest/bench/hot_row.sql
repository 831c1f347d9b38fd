BEGIN;
UPDATE bench_stock SET on_hand = on_hand - 1 WHERE sku = 'hot' AND on_hand >= 1;
INSERT INTO bench_order (at) VALUES (now());
INSERT INTO bench_item VALUES (lastval(), 'hot', 1);
COMMIT;
